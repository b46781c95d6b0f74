"""Runs torchtitan on CPUs: lends it a device, and is `python -m torchtitan.train`.

torchtitan 0.3 knows no CPU. Three things are missing there: functions of torch.cuda in torch.cpu, attention with a
backward pass, and a sum in gloo that is scaled on the way. It also calls a function of a later torch than 2.13. The
trainer's loop, its checkpoints, FSDP and the data loader are the real ones. The model has one layer of its six.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.functional import scaled_dot_product_attention


def lend_a_device() -> None:
    """Give torch.cpu what torchtitan asks torch.cuda for. To be called before torchtitan is imported."""
    torch._utils._get_available_device_type = lambda: "cpu"
    lent: dict[str, Any] = {
        "current_device": lambda: 0,
        "get_device_name": lambda _: "CPU",
        "get_device_properties": lambda _: SimpleNamespace(total_memory=1),
        "memory_stats": lambda _: {},
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
    }
    for name, function in lent.items():
        setattr(torch.cpu, name, function)

    if not hasattr(torch.distributed, "set_timeout"):
        vars(torch.distributed)["set_timeout"] = lambda _timeout, _group: None

    from torchtitan.models.common.attention import FlexAttention  # noqa: PLC0415  # only now

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, enable_gqa: bool, **_: object
    ) -> tuple[Tensor, None]:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa), None

    FlexAttention._compiled_flex_attn = staticmethod(attend)

    from torchtitan.models.llama3 import llama3_configs  # noqa: PLC0415  # as above

    debug_model = llama3_configs["debugmodel"]

    def smaller_model(**options: Any) -> Any:
        config = debug_model(**options)
        config.layers = config.layers[:1]
        return config

    llama3_configs["debugmodel"] = smaller_model

    set_factor = FSDPModule.set_gradient_divide_factor

    def set_factor_for_gloo(module: FSDPModule, factor: float) -> None:
        set_factor(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_factor_for_gloo


if __name__ == "__main__":
    lend_a_device()
    from torchtitan.train import main  # only now

    sys.exit(main())
