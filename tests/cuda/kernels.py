"""The kernels of kernels/ as CUDA, compiled by NVRTC: text, arguments and grids as the crate makes them."""

import ctypes
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.environ.get("KERNELS", os.path.join(HERE, "..", "..", "kernels"))
TYPES = {"f32": "float", "f16": "__half", "bf16": "__nv_bfloat16", "u32": "unsigned int"}

# Inputs and output of each kernel, with the template parameter or type of each.
ARGUMENTS = {
    "gate_up": [("x", "T"), ("bank", "u32"), ("layout", "u32"), ("tiles", "u32"), ("pair_rows", "u32"), ("inner", "f32")],
    "down": [("inner", "f32"), ("bank", "u32"), ("layout", "u32"), ("tiles", "u32"), ("weights", "f32"), ("out", "f32")],
    "down_compose": [
        ("inner", "f32"), ("bank", "u32"), ("layout", "u32"), ("offsets", "u32"), ("terms", "u32"),
        ("weights", "f32"), ("shared_rows", "T"), ("out", "T"),
    ],
    "compose": [("weighted_rows", "f32"), ("offsets", "u32"), ("terms", "u32"), ("shared_rows", "T"), ("out", "T")],
    "linear": [("x", "T"), ("weight", "u32"), ("scales", "S"), ("biases", "S"), ("counts", "u32"), ("out", "T")],
    "swiglu": [
        ("x", "T"), ("gate_weight", "u32"), ("gate_scales", "GATE_S"), ("gate_biases", "GATE_S"),
        ("up_weight", "u32"), ("up_scales", "UP_S"), ("up_biases", "UP_S"), ("counts", "u32"), ("out", "T"),
    ],
}


def read(name):
    with open(os.path.join(FOLDER, name)) as file:
        return file.read()


def cuda(text):
    return text.replace("  threadgroup float ", "  __shared__ float ").replace("device ", "")


def source(kernel, parameters, check=None):
    """CUDA text of one instance: `parameters` maps template parameters to values, types by their short names."""
    body = cuda(read(kernel + ".metal"))
    if check:
        body = check(body)
    template = ", ".join(
        ("typename " if value in TYPES else "bool " if isinstance(value, bool) else "int ") + name
        for name, value in parameters.items()
    )
    values = ", ".join(TYPES[v] if v in TYPES else str(v).lower() if isinstance(v, bool) else str(v) for v in parameters.values())
    arguments = []
    for index, (name, kind) in enumerate(ARGUMENTS[kernel]):
        const = "" if index == len(ARGUMENTS[kernel]) - 1 else "const "
        arguments.append(f"{const}{TYPES.get(kind, kind)}* {name}")
    text = read("cuda_prelude.h") + "\n" + cuda(read("experts.h"))
    text += f"template <{template}>\n__global__ void {kernel}({', '.join(arguments)}) {{\n{body}\n}}\n"
    return text, f"{kernel}<{values}>"


def expert_parameters(hidden, inner, bits, group, signed, scales):
    return dict(HIDDEN=hidden, INNER=inner, BIAS=False, L="f32", S=scales, BITS=bits, GROUP=group, SIGNED=signed)


def compile_only(kernel, parameters, library, includes, architecture="compute_90"):
    """PTX of one instance, by the NVRTC library at a path: needs no GPU."""
    nvrtc = ctypes.CDLL(library)
    text, name = source(kernel, parameters)
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    nvrtc.nvrtcAddNameExpression(program, name.encode())
    options = [f"--gpu-architecture={architecture}".encode(), b"-std=c++17"] + [f"-I{path}".encode() for path in includes]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if status != 0:
        raise RuntimeError(log.value.decode())
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value.decode(), log.value.decode()
