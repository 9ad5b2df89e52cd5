"""Native CPU kernels. Weights are stored in panels, and a team of threads runs a program of operations in one call."""

from lmi_kernels.cpu.binding import Recording, bind
from lmi_kernels.cpu.eager import RmsNorm
from lmi_kernels.cpu.eager_attention import LayerAttention
from lmi_kernels.cpu.layout import StepInput
from lmi_kernels.cpu.logit_bounds import LogitBounds
from lmi_kernels.cpu.recorder import NotRecorded, Recorder, Rows
from lmi_kernels.cpu.structs import KvLayer, OpKind, Step, Storage
from lmi_kernels.cpu.team import Team, set_num_threads, shared_team

__all__ = [
    "KvLayer",
    "LayerAttention",
    "LogitBounds",
    "NotRecorded",
    "OpKind",
    "Recorder",
    "Recording",
    "RmsNorm",
    "Rows",
    "Step",
    "StepInput",
    "Storage",
    "Team",
    "bind",
    "set_num_threads",
    "shared_team",
]
