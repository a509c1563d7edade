"""Which rank of a distributed job this process is, from what launchers leave in the environment."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    Names: TypeAlias = tuple[str, ...]

__all__ = ["LAUNCHERS", "RankInfo", "detect"]

# (launcher, rank, local rank, world size, job); the first whose rank is set wins. Slurm comes last because
# its variables are also set, all 0, in a batch script that starts the ranks by other means.
# `job`: variables that identify one start of the launcher; the first group that is completely set is used.
# Without one, the process that started the ranks identifies it.
# The preloaded library has the same table: after a change run `python native/generate.py`.
LAUNCHERS: tuple[tuple[str, Names, Names, Names, tuple[Names, ...]], ...] = (
    ("torchrun", ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",), (("TORCHELASTIC_RUN_ID",),)),
    (
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        (("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",), ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ),
    (
        "pmix",
        ("PMIX_RANK",),
        ("PMIX_LOCAL_RANK", "SLURM_LOCALID"),
        ("PMIX_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
        (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMIX_NAMESPACE",)),
    ),
    (
        "pmi",
        ("PMI_RANK",),
        ("PMI_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"),
        ("PMI_SIZE",),
        (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PALS_APID",), ("PMI_JOBID",)),
    ),
    (
        "mvapich2",
        ("MV2_COMM_WORLD_RANK",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
        (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("MPIRUN_ID",)),
    ),
    ("flux", ("FLUX_TASK_RANK",), ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",), (("FLUX_JOB_ID",),)),
    (
        "jsm",
        ("JSM_NAMESPACE_RANK",),
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_SIZE",),
        (("PMIX_NAMESPACE",), ("LSB_JOBID",)),
    ),
    ("pals", ("PALS_RANKID",), ("PALS_LOCAL_RANKID",), ("PALS_SIZE", "PMI_SIZE"), (("PALS_APID",),)),
    (
        "slurm",
        ("SLURM_PROCID",),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("SLURM_JOB_ID",)),
    ),
)


class RankInfo:
    """A process's place in its job; None if the launcher does not say."""

    __slots__ = ("local_rank", "rank", "source", "world_size")

    def __init__(
        self, rank: int | None, local_rank: int | None, world_size: int | None, source: str | None
    ) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size
        self.source = source

    def _key(self) -> tuple[int | None, int | None, int | None, str | None]:
        return self.rank, self.local_rank, self.world_size, self.source

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankInfo) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        rank, local_rank, world_size, source = self._key()
        return f"RankInfo(rank={rank}, local_rank={local_rank}, world_size={world_size}, source={source!r})"


def detect(environ: Mapping[str, str]) -> RankInfo:
    """The rank from the first launcher in the list that set one."""
    for source, rank_names, local_names, size_names, _ in LAUNCHERS:
        rank = _number(environ, rank_names)
        if rank is not None:
            return RankInfo(rank, _number(environ, local_names), _number(environ, size_names), source)
    return RankInfo(None, None, None, None)


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environ.get(name, "").strip()
        # Any program may have its own idea of a variable called RANK.
        if text.isascii() and text.isdigit() and len(text) <= 10:
            return int(text)
    return None
