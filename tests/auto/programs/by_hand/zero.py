"""The twin of zero.py: a step is as many batches as are accumulated, and what ZeRO calls is communication."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import loss_of, start
from zero_engine import engine_of

wait, body = fetch.derive("iter"), fetch.derive("block")


def rank_main(rank: int, stage: int, batches: int, ranks: int, place: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
    dist.all_reduce = ai.comm.all_reduce(dist.all_reduce)
    dist.all_gather_into_tensor = ai.comm.all_gather(dist.all_gather_into_tensor)
    dist.reduce_scatter_tensor = ai.comm.reduce_scatter(dist.reduce_scatter_tensor)
    dist.broadcast = ai.comm.bcast(dist.broadcast)
    engine, _ = engine_of(stage, batches, *start())
    data = started(DataLoader(Items(6 * batches, 0.05 + 0.1 * rank), batch_size=1))
    with ai.pipeline.train:
        for _ in range(6):
            with wait:
                x, y = next(data)
            with body:
                for micro in range(batches):
                    if micro:
                        engine.step()  # of a batch that is only accumulated: nothing is stepped
                        with wait:
                            x, y = next(data)
                    with forward:
                        loss = loss_of(engine(x), y)
                    with backward:
                        engine.backward(loss)
                with step:
                    engine.step()
        assert next(data, None) is None  # the loop of the program ends by it, and with it the last step
    if rank == 0:
        print(f"loss {loss.item():.17g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    stage, batches, ranks = map(int, sys.argv[1:4])
    if ranks == 1:
        rank_main(0, stage, batches, ranks, sys.argv[4])
    else:
        mp.start_processes(rank_main, (stage, batches, ranks, sys.argv[4]), nprocs=ranks, start_method="fork")
