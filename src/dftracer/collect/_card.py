"""The workload card: a description of the run as CCL-Bench lays it out, filled in as far as possible.

What cannot be known inside the process stays empty, with a comment; `workload=` of `collect` fills it in.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dftracer.collect._names import Names
from dftracer.collect._options import Options

# --- YAML, as far as the card needs it

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
# Not allowed in a YAML stream, or a line break in it.
_UNSAFE = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def dump_yaml(value: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """`value` as YAML; `comments`, by dotted path, are appended to their keys."""
    return "\n".join(_mapping(value, 0, "", comments or {})) + "\n"


def _scalar(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return json.dumps(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return _UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", json.dumps(text, ensure_ascii=False))


def _mapping(value: Mapping[str, Any], depth: int, path: str, comments: Mapping[str, str]) -> Iterator[str]:
    pad = "  " * depth
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        remark = f"  # {comments[where]}" if where in comments else ""
        if isinstance(item, Mapping) and item:
            yield f"{pad}{_scalar(key)}:{remark}"
            yield from _mapping(item, depth + 1, where, comments)
        elif isinstance(item, (list, tuple)) and item:
            yield f"{pad}{_scalar(key)}:{remark}"
            for each in item:
                yield f"{pad}  - {_scalar(each)}"
        elif isinstance(item, (list, tuple, Mapping)):
            yield f"{pad}{_scalar(key)}: {'{}' if isinstance(item, Mapping) else '[]'}{remark}"
        else:
            yield (
                f"{pad}{_scalar(key)}: {_scalar(item)}{remark}".rstrip()
                if not remark
                else (f"{pad}{_scalar(key)}: {_scalar(item)}".rstrip() + remark)
            )


# --- The card

_PRECISION = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_ENVIRONMENT = ("NCCL_", "GLOO_", "UCX_", "FI_", "TORCH_NCCL_", "RCCL_")
_UNKNOWN = "not known from inside the program"
_REMARKS = dict.fromkeys(
    (
        "description",
        "hf_url",
        "trace_url",
        "contributor",
        "contact",
        "workload.hardware.network_topo.topology",
        "Model-executor.protocol_selection",
    ),
    _UNKNOWN,
)


def content(torch: Any, options: Options, names: Names, steps: int) -> dict[str, Any]:
    """The card of this run; parts that cannot be found out stay empty."""
    modules, loaders = _objects(torch)
    model = max(modules, key=_parameters, default=None)
    card: dict[str, Any] = {
        "version": 1,
        "description": None,
        "hf_url": _hugging_face(model),
        "trace_url": names.directory,
        "contributor": None,
        "contact": None,
        "workload": {
            "model": _model(model, steps),
            "data": _data(loaders),
            "hardware": _hardware(torch, names.world_size),
        },
        "Model-executor": {
            "framework": {
                "name": f"pytorch-{torch.__version__}",
                "compiler_tool_selection": _compiler(model),
            },
            "model_plan_parallelization": _plan(modules, names.world_size),
            "communication_library": _library(torch),
            "protocol_selection": [],
        },
        "metric_source": {
            "traces": sorted({name for w in options.traces for name in _TRACE_KINDS[w]}),
            "metrics_specific_trace": [
                file["name"] for file in names.files() if not file["name"].startswith(("torch_et", "kineto"))
            ],
        },
    }
    return _merged(card, options.workload)


# The names by which CCL-Bench's tools choose their reader: `json` is a Kineto file.
_TRACE_KINDS = {"pfw": ("pfw",), "et": ("torch_et",), "kineto": ("json",), "nsys": ("nsys",)}


def write(path: str, card: Mapping[str, Any]) -> None:
    """Write the card; comments mark what is left to fill in."""
    part = path + ".part"
    remarks = {where: text for where, text in _REMARKS.items() if not _at(card, where)}
    with open(part, "w", encoding="utf-8") as file:
        file.write(dump_yaml(card, remarks))
    os.replace(part, path)


def _at(card: Any, path: str) -> Any:
    for key in path.split("."):
        card = card.get(key) if isinstance(card, Mapping) else None
    return card


def _merged(card: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in given.items():
        if isinstance(value, Mapping) and isinstance(card.get(key), dict):
            card[key] = _merged(card[key], value)
        else:
            card[key] = value
    return card


def _objects(torch: Any) -> tuple[list[Any], list[Any]]:
    """Modules that are part of no other module, and data loaders."""
    modules: list[Any] = []
    loaders: list[Any] = []
    module_class, loader_class = torch.nn.Module, torch.utils.data.DataLoader
    for candidate in gc.get_objects():
        # Asking the object itself (isinstance) would wake proxies of deprecated names.
        kind = type(candidate)
        if issubclass(kind, module_class):
            modules.append(candidate)
        elif issubclass(kind, loader_class):
            loaders.append(candidate)
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner], loaders


def _parameters(model: Any) -> int:
    try:
        return sum(int(p.numel()) for p in model.parameters())
    except Exception:  # lazy modules have no sizes yet
        return 0


def _config(model: Any, *names: str) -> Any:
    config = getattr(getattr(model, "module", model), "config", None)
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (int, str)):
            return value
    return None


def _hugging_face(model: Any) -> str | None:
    name = _config(model, "_name_or_path", "name_or_path")
    return f"https://huggingface.co/{name}" if name and "/" in str(name) else None


def _model(model: Any, steps: int) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(
        ("phase", "moe", "granularity", "model_family", "precision", "epochs", "iteration")
    )
    found["iteration"] = steps
    arch: dict[str, Any] = dict.fromkeys(
        ("num_params", "num_params_embedding", "num_layers", "num_heads", "head_dim")
    )
    found["model_arch"] = arch
    if model is None:
        return found
    inner = getattr(model, "module", model)
    kinds = [type(m).__name__.lower() for m in model.modules()]
    trains = any(p.requires_grad for p in model.parameters()) and model.training
    found["phase"] = "training" if trains else "inference"
    found["granularity"] = "model_fwd_bwd_pass" if trains else "model_fwd"
    found["moe"] = any("moe" in kind or "expert" in kind for kind in kinds)
    found["model_family"] = type(getattr(inner, "_orig_mod", inner)).__name__
    dtypes: dict[str, int] = {}
    for parameter in model.parameters():
        word = str(parameter.dtype).removeprefix("torch.")
        dtypes[word] = dtypes.get(word, 0) + int(parameter.numel())
    if dtypes:
        main = max(dtypes, key=lambda word: dtypes[word])
        found["precision"] = _PRECISION.get(main, main)
    arch["num_params"] = _parameters(model)
    arch["num_params_embedding"] = sum(
        _parameters(m) for m in model.modules() if "embedding" in type(m).__name__.lower()
    )
    stacks = [len(m) for m in model.modules() if type(m).__name__ == "ModuleList"]
    arch["num_layers"] = _config(model, "num_hidden_layers", "n_layer") or (max(stacks) if stacks else None)
    attention = [m for m in model.modules() if isinstance(getattr(m, "num_heads", None), int)]
    heads = _config(model, "num_attention_heads", "n_head") or (attention[0].num_heads if attention else None)
    arch["num_heads"] = heads
    width = _config(model, "hidden_size", "n_embd") or (
        getattr(attention[0], "embed_dim", None) if attention else None
    )
    if isinstance(heads, int) and isinstance(width, int) and heads:
        arch["head_dim"] = width // heads
    return found


def _data(loaders: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"batch_size": None, "seq_len": None, "dataset": None}
    if loaders:
        loader = loaders[-1]
        found["batch_size"] = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        found["dataset"] = type(loader.dataset).__name__
    return found


def _hardware(torch: Any, world_size: int) -> dict[str, Any]:
    gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # nothing wakes a device for a card
    given = os.environ.get("LOCAL_WORLD_SIZE", "")  # of torchrun
    ranks_here = int(given) if given.isdecimal() else 0
    local = ranks_here or min(world_size, torch.cuda.device_count() if gpu else world_size)
    return {
        "network_topo": {"topology": None, "bandwidth_gbps": []},
        "xpu_spec": {
            "type": "GPU" if gpu else "CPU",
            "model": torch.cuda.get_device_name() if gpu else _cpu_model(),
            "total_count": world_size,
            "count_per_node": local,
        },
        "driver_version": f"cuda_{torch.version.cuda}" if torch.version.cuda else None,
    }


def _cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


def _compiler(model: Any) -> str:
    compiled = model is not None and any(hasattr(m, "_orig_mod") for m in model.modules())
    return "torch.compile" if compiled else "plain_pytorch"


def _plan(modules: list[Any], world_size: int) -> dict[str, Any]:
    plan: dict[str, Any] = dict.fromkeys(("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "pp_mb"))
    kinds = {type(m).__name__ for root in modules for m in root.modules()}
    if world_size == 1:
        plan.update(dict.fromkeys(("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep"), 1))
    elif "DistributedDataParallel" in kinds:
        plan.update(dp_replicate=world_size, dp_shard=1)
    elif any(kind.startswith(("FullyShardedDataParallel", "FSDP")) for kind in kinds):
        plan.update(dp_replicate=1, dp_shard=world_size)
    return plan


def _library(torch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": None, "version": None}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        found["name"] = str(distributed.get_backend())
        if found["name"] == "nccl":
            version = torch.cuda.nccl.version()
            found["version"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    found["env"] = {key: os.environ[key] for key in sorted(os.environ) if key.startswith(_ENVIRONMENT)}
    return found
