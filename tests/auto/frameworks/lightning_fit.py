"""Lightning, automatic optimization or manual, with a validation loop."""

import sys
import warnings
from typing import Any

import lightning
import torch
from parts import STEPS, Items, Model, Optimizer
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self, manual: bool) -> None:
        super().__init__()
        self.model = Model()
        self.automatic_optimization = not manual

    def training_step(self, batch: Any, index: Any) -> Any:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.last = float(loss.detach())
        return loss

    def validation_step(self, batch: Any, index: Any) -> Any:
        x, y = batch
        return torch.nn.functional.mse_loss(self.model(x), y)

    def configure_optimizers(self) -> Any:
        return Optimizer(self.parameters())


def main(kind: str, folder: str, by_hand: bool) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    module = Module(kind == "manual")
    more = {}
    if by_hand:
        from dftracer.auto.lightning import DFTracerCallback, DFTracerProfiler

        more = {"callbacks": [DFTracerCallback()], "profiler": DFTracerProfiler()}
    trainer = lightning.Trainer(
        **more,
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, DataLoader(Items(STEPS), batch_size=1), DataLoader(Items(3), batch_size=1))
    print(f"steps {trainer.global_step} loss {module.last:.17g}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "hand" in sys.argv[3:])
