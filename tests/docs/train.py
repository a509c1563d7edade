"""Stands for the reader's own program on pages that only say `python train.py`; quick, so without PyTorch."""

from dftracer.python import ai

for _ in ai.dataloader.fetch.iter(range(5)):
    with ai.compute.forward:
        pass
    with ai.compute.backward:
        pass
