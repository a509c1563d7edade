"""The environment as programs import it: names of variables, the log level, a logger."""

from __future__ import annotations

import logging

from dftracer.python import DFTRACER_ENABLE, DFTRACER_INIT_PRELOAD, DFTRACER_LOG_LEVEL

__all__ = [
    "DFTRACER_ENABLE",
    "DFTRACER_ENABLE_ENV",
    "DFTRACER_INIT_ENV",
    "DFTRACER_INIT_PRELOAD",
    "DFTRACER_LOG_LEVEL",
    "DFTRACER_LOG_LEVEL_ENV",
    "DFTRACER_TIME_METRIC_ENV",
    "setup_logger",
    "setup_stream_logger",
]

DFTRACER_ENABLE_ENV = "DFTRACER_ENABLE"
DFTRACER_INIT_ENV = "DFTRACER_INIT"
DFTRACER_LOG_LEVEL_ENV = "DFTRACER_LOG_LEVEL"
DFTRACER_TIME_METRIC_ENV = "DFTRACER_TIME_METRIC"


def setup_stream_logger() -> logging.Logger:
    """The logger `DFTRACER`: to stderr, at the level set by DFTRACER_LOG_LEVEL."""
    logger = logging.getLogger("DFTRACER")
    logger.setLevel(getattr(logging, DFTRACER_LOG_LEVEL))
    if not logger.handlers:
        _add(logger, logging.StreamHandler(), "[%(levelname)s] %(message)s")
    return logger


def setup_logger(name: str, log_file: str, formatter: str, level: int = logging.INFO) -> logging.Logger:
    """A logger that writes to a file."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    _add(logger, logging.FileHandler(log_file), formatter)
    return logger


def _add(logger: logging.Logger, handler: logging.Handler, form: str) -> None:
    handler.setFormatter(logging.Formatter(form))
    logger.addHandler(handler)
