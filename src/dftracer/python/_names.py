"""The parts that event names are made of."""

BLOCK_NAME = "block"
ITER_NAME = "iter"
INIT_NAME = "init"
ITER_COUNT_NAME = "count"
CTX_SEPARATOR = "."
ROOT_NAME = "ai_root"
ROOT_CAT = "ai_root"
START_METADATA_NAME = "start"
STOP_METADATA_NAME = "end"

__all__ = [
    "BLOCK_NAME",
    "CTX_SEPARATOR",
    "INIT_NAME",
    "ITER_COUNT_NAME",
    "ITER_NAME",
    "ROOT_CAT",
    "ROOT_NAME",
    "START_METADATA_NAME",
    "STOP_METADATA_NAME",
    "get_iter_block_name",
    "get_iter_handle_name",
]


def get_iter_block_name(name: str) -> str:
    """The name of the event of a loop's body."""
    suffix = f"{CTX_SEPARATOR}{BLOCK_NAME}"
    return name if name.endswith(suffix) else name + suffix


def get_iter_handle_name(name: str) -> str:
    """The name of the event of waiting for a loop's next item."""
    suffix = f"{CTX_SEPARATOR}{ITER_NAME}"
    return name if name.endswith(suffix) else name + suffix
