"""Ray Train: one worker, a loader prepared by `prepare_data_loader`."""

import os
import sys

# At Ray's own niceness of 15 a worker hardly runs beside two busy processes.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's spelling

import ray
import ray.train.torch
from ray.train import RunConfig, ScalingConfig


def loop() -> None:
    from parts import Items, loss_of, start
    from torch.utils.data import DataLoader

    model, optimizer = start()
    loader = ray.train.torch.prepare_data_loader(DataLoader(Items(), batch_size=1))
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    trainer = ray.train.torch.TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=1, use_gpu=False),
        run_config=RunConfig(storage_path=sys.argv[1]),
    )
    trainer.fit()
    print("done")
