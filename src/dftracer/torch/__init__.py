"""Where a training program meets torch: the only room that patches torch, or waits for its import.

`patches` waits for modules and observes their functions so that everything can be undone; the others watch
one kind of boundary each: batches (`loader`), models (`rule`), backward and optimizers (`compute`), copies
(`tensors`), checkpoints, collectives, compilations, the device. `auto` and `collect` build on what they see.

The name is safe: every import in this package is absolute, so that `import torch` is always PyTorch.
"""
