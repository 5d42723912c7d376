"""What several tests look at and takes long to make: made by one of pytest-xdist's workers, for all of them."""

import os
import shutil

from filelock import FileLock  # comes with torch


def once(tmp_path_factory, name, make):
    """The folder `name`, which `make(folder)` fills when it is asked for first. If that fails, the next one tries."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # of all workers
    folder, done = place / name, place / f"{name}.done"
    with FileLock(place / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
