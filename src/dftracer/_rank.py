"""Which rank of a distributed job this process is, from what launchers leave in the environment."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Rank", "detect"]

# (launcher, rank, local rank, world size); the first whose rank is set wins. Slurm comes last because its
# variables are also set, all 0, in a batch script that starts the ranks by other means.
_LAUNCHERS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    ("torchrun", ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",)),
    ("openmpi", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("pmix", ("PMIX_RANK",), ("PMIX_LOCAL_RANK", "SLURM_LOCALID"), ("PMIX_SIZE", "PMI_SIZE", "SLURM_NTASKS")),
    ("pmi", ("PMI_RANK",), ("PMI_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"), ("PMI_SIZE",)),
    ("mvapich2", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    ("flux", ("FLUX_TASK_RANK",), ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",)),
    ("jsm", ("JSM_NAMESPACE_RANK",), ("JSM_NAMESPACE_LOCAL_RANK",), ("JSM_NAMESPACE_SIZE",)),
    ("pals", ("PALS_RANKID",), ("PALS_LOCAL_RANKID",), ("PALS_SIZE", "PMI_SIZE")),
    ("slurm", ("SLURM_PROCID",), ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)


class Rank:
    """A process's place in its job; None is what the launcher does not say."""

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
        return isinstance(other, Rank) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        rank, local_rank, world_size, source = self._key()
        return f"Rank(rank={rank}, local_rank={local_rank}, world_size={world_size}, source={source!r})"


def detect(environ: Mapping[str, str]) -> Rank:
    """The rank that the first launcher of the list that left one gives."""
    for source, rank_names, local_names, size_names in _LAUNCHERS:
        rank = _number(environ, rank_names)
        if rank is not None:
            return Rank(rank, _number(environ, local_names), _number(environ, size_names), source)
    return Rank(None, None, None, None)


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environ.get(name, "").strip()
        # Any program may have its own idea of a variable called RANK.
        if text.isascii() and text.isdigit() and len(text) <= 10:
            return int(text)
    return None
