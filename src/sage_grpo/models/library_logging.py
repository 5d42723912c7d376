"""A switch that silences the libraries' progress bars and notices about toy checkpoints, for rehearsals and plans."""

import importlib.util
import logging
import warnings


def quiet_libraries() -> None:
    if not importlib.util.find_spec("diffusers"):
        return  # an extra that is not there says nothing
    from diffusers.utils import logging as diffusers_logging  # noqa: PLC0415 - an extra
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415 - an extra

    warnings.simplefilter("ignore")
    for library in (diffusers_logging, transformers_logging):
        library.set_verbosity_error()
        library.disable_progress_bar()
    logging.getLogger("peft").setLevel(logging.ERROR)
