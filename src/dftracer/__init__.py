"""Says where the time of a training job goes."""

__version__ = "0.1.0"

__all__ = ["__version__"]
