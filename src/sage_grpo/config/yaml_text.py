"""Reading of YAML as plain data, with limits on depth and size.

Without limits, a small file could expand to endless settings by aliases.
"""

from typing import Any

import yaml

DEEPEST = 50  # levels inside each other
LONGEST = 100_000  # characters
MOST = 100_000  # values, with those that an alias repeats
DIGITS = 100  # of a whole number


class YamlError(ValueError):
    """Raised when a text is not valid YAML, or exceeds a limit of this module."""


class _Loader(yaml.SafeLoader):
    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """Refuse deep nesting during the scan of the text, because its time grows with the square of the depth."""
        if self.flow_level >= DEEPEST:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass)


def read_yaml(text: str) -> Any:
    """Return the content of a YAML text: mappings, lists and plain values, or None if the text is empty.

    Raises:
        YamlError: The text is not valid YAML, has other objects, or exceeds a limit; the message says what is wrong.
    """
    if len(text) > LONGEST:
        raise YamlError(f"it has more than {LONGEST:,} characters")
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {}, ())
        return loader.construct_document(node)
    except YamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # a number or date that is none
        raise YamlError(" ".join(str(error).split())) from None
    except RecursionError:
        raise YamlError(f"it is nested more than {DEEPEST} levels deep") from None
    finally:
        if loader is not None:
            loader.dispose()


def _measure(node: yaml.Node, sizes: dict[int, int], above: tuple[int, ...]) -> int:
    """Return the number of values in a node. Those behind an alias count each time that it is used."""
    if id(node) in above:
        raise YamlError("an alias goes round in circles")
    if len(above) > DEEPEST:
        raise YamlError(f"it is nested more than {DEEPEST} levels deep")
    if id(node) not in sizes:
        inner = (*above, id(node))
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif node.tag == "tag:yaml.org,2002:int" and len(node.value) > DIGITS:
            raise YamlError(f"a whole number has more than {DIGITS} digits")
        sizes[id(node)] = 1 + sum(_measure(part, sizes, inner) for part in parts)
    if sizes[id(node)] > MOST:
        raise YamlError(f"its aliases make more than {MOST:,} values of it")
    return sizes[id(node)]
