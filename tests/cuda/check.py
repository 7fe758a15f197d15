"""Runs the kernels on an NVIDIA GPU (needs CuPy): against f64, bit against bit, and timed. `check.py small` is for compute-sanitizer.

Prints `figure NAME VALUE` lines. A read rate of the same card in the same run stands beside every rate.
"""

import sys

import cupy as cp
import numpy as np

from kernels import ARGUMENTS, TYPES, expert_parameters, source

SIMDGROUPS = 4
CUPY = {"f32": cp.float32, "f16": cp.float16, "u32": cp.uint32}
MODULES = {}
TOLERANCE = {"f16": lambda width: 2e-3, "bf16": lambda width: 1e-2, "f32": lambda width: 1e-6 * width**0.5}


def function(kernel, parameters, change=None):
    text, name = source(kernel, parameters, change)
    if text + name not in MODULES:
        options = ("-std=c++17", "-I/usr/local/cuda/include", "-I/usr/local/cuda/include/cccl")
        module = cp.RawModule(code=text, options=options, name_expressions=[name], backend="nvrtc")
        MODULES[text + name] = (module, module.get_function(name))
    return MODULES[text + name][1]


def to_type(values, kind):
    """f32 values as an array of bits of `kind`, and the values they stand for."""
    values = cp.asarray(values, dtype=cp.float32)
    if kind == "f32":
        return values, values
    if kind == "f16":
        return values.astype(cp.float16), values.astype(cp.float16).astype(cp.float32)
    bits = values.view(cp.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return bits.astype(cp.uint16), (bits << 16).astype(cp.uint32).view(cp.float32)


def from_type(array, kind):
    if kind == "bf16":
        return (array.astype(cp.uint32) << 16).view(cp.float32)
    return array.astype(cp.float32)


class Layer:
    """A bank of random experts of one geometry."""

    def __init__(self, hidden, inner, bits, group, signed, scales, slots, seed):
        self.hidden, self.inner, self.bits, self.signed, self.scales, self.slots = hidden, inner, bits, signed, scales, slots
        self.groups = [group or hidden, group or inner]
        rng = cp.random.default_rng(seed)
        item = {"f32": 4, "f16": 2, "bf16": 2}[scales]
        offset, self.at = 0, {}
        shapes = {"down": (hidden, inner), "gate": (inner, hidden), "up": (inner, hidden)}
        for part in ("weight", "scales", "biases"):
            for name, (rows, columns) in shapes.items():
                group_of = group or columns
                size = rows * columns * bits // 8 if part == "weight" else rows * (-(-columns // group_of)) * item
                if part == "biases" and signed:
                    self.at[name, part] = (0, 0)
                    continue
                self.at[name, part] = (offset, size)
                offset = -(-(offset + size) // 16384) * 16384
        self.slot_bytes = offset
        self.skipped = 4096
        self.bank = cp.zeros(self.skipped + slots * offset, dtype=cp.uint8)
        step = 0.1 / 2**bits
        for slot in range(slots):
            base = self.skipped + slot * offset
            for (name, part), (start, size) in self.at.items():
                view = self.bank[base + start : base + start + size]
                if part == "weight":
                    view[:] = rng.integers(0, 256, size, dtype=cp.uint8)
                elif size:
                    count = size // item
                    values = step * (1 + rng.random(count, dtype=cp.float32))
                    if part == "biases":
                        values = -values * (2 ** (bits - 1) - 0.5)
                    view[:] = to_type(values, scales)[0].view(cp.uint8)
        words = [self.skipped // 4, offset // 4]
        for name in ("gate", "up", "down"):
            words += [self.at[name, part][0] // 4 for part in ("weight", "scales", "biases")] + [0]
        self.layout = cp.asarray(words, dtype=cp.uint32)
        self.expert_bytes = sum(size for _, size in self.at.values())

    def weights(self, slot, name):
        """One projection in f64."""
        rows, columns = (self.hidden, self.inner) if name == "down" else (self.inner, self.hidden)
        base = self.skipped + slot * self.slot_bytes
        part = lambda part: self.bank[base + self.at[name, part][0] : base + sum(self.at[name, part])]
        raw = part("weight").reshape(rows, -1)
        if self.bits == 8:
            codes = (raw.view(cp.int8) if self.signed else raw).astype(cp.float64)
        else:
            codes = cp.stack([raw & 15, raw >> 4], axis=2).reshape(rows, columns).astype(cp.float64)
            codes = codes - 8 if self.signed else codes
        item = {"f32": cp.float32, "f16": cp.float16, "bf16": cp.uint16}[self.scales]
        groups = part("scales").view(item).size // rows
        spread = lambda p: cp.repeat(from_type(part(p).view(item), self.scales).astype(cp.float64).reshape(rows, groups), columns // groups, axis=1)
        return codes * spread("scales") if self.signed else codes * spread("scales") + spread("biases")

    def parameters(self, down):
        return expert_parameters(self.hidden, self.inner, self.bits, self.groups[down], self.signed, self.scales)


def oracle(layer, x, plan, shared):
    out = cp.zeros((x.shape[0], layer.hidden), dtype=cp.float64)
    for slot in sorted({slot for row in plan for slot, _ in row}):
        gate, up, down = (layer.weights(slot, name) for name in ("gate", "up", "down"))
        for row, terms in enumerate(plan):
            for chosen, weight in terms:
                if chosen == slot:
                    g, u = gate @ x[row].astype(cp.float64), up @ x[row].astype(cp.float64)
                    out[row] += float(weight) * (down @ (g / (1 + cp.exp(-g)) * u))
    return out + shared.astype(cp.float64)


class Work:
    """Index arrays of a plan: rows of (slot, weight) in rank order."""

    def __init__(self, plan, per_tile):
        jobs = {}
        for row, terms in enumerate(plan):
            for rank, (slot, weight) in enumerate(terms):
                jobs.setdefault(slot, []).append((row, rank, weight))
        tiles, rows, weights, where = [], [], [], {}
        for slot, uses in jobs.items():
            for first in range(0, len(uses), per_tile):
                part = uses[first : first + per_tile]
                tiles.append((slot, len(rows), len(part)))
                for row, rank, weight in part:
                    where[row, rank] = len(rows)
                    rows.append(row)
                    weights.append(weight)
        order = [(row, rank) for row, terms in enumerate(plan) for rank in range(len(terms))]
        u32 = lambda values: cp.asarray(np.asarray(values, dtype=np.uint32))
        self.count, self.pairs, self.rows, self.per_tile = len(tiles), len(rows), len(plan), per_tile
        self.tiles, self.pair_rows = u32(tiles).ravel(), u32(rows)
        self.weights = cp.asarray(np.asarray(weights, dtype=np.float32))
        self.offsets = u32(np.cumsum([0] + [len(terms) for terms in plan]))
        self.terms = u32([(plan[row][rank][0], where[row, rank]) for row, rank in order]).ravel()
        self.positions = u32([where[each] for each in order])
        self.term_weights = cp.asarray(np.asarray([plan[row][rank][1] for row, rank in order], dtype=np.float32))
        self.ranks = max(len(terms) for terms in plan)


class Runner:
    def __init__(self, layer, kind, gate_rows=2, down_rows=4, compose_rows=8, change=None):
        self.layer, self.kind = layer, kind
        self.gate_rows, self.down_rows, self.compose_rows, self.change = gate_rows, down_rows, compose_rows, change

    def gate_up(self, work, x, inner):
        layer = self.layer
        parameters = dict(T=self.kind, **layer.parameters(0), ROWS=self.gate_rows, PAIRS=work.per_tile, CLAMPED=False, ALPHA=0, LIMIT=0)
        blocks = -(-layer.inner // (self.gate_rows * SIMDGROUPS))
        arguments = (x, layer.bank, layer.layout, work.tiles, work.pair_rows, inner)
        function("gate_up", parameters, self.change)((1, blocks, work.count), (32, SIMDGROUPS, 1), arguments)

    def down(self, work, inner, out):
        layer = self.layer
        parameters = dict(**layer.parameters(1), ROWS=self.down_rows, PAIRS=work.per_tile)
        blocks = -(-layer.hidden // (self.down_rows * SIMDGROUPS))
        arguments = (inner, layer.bank, layer.layout, work.tiles, work.weights, out)
        function("down", parameters, self.change)((1, blocks, work.count), (32, SIMDGROUPS, 1), arguments)

    def down_compose(self, work, inner, shared, out):
        layer, simdgroups = self.layer, 4 if work.ranks <= 4 else 8
        ranks = -(-work.ranks // 8) * 8
        parameters = dict(T=self.kind, **layer.parameters(1), ROWS=self.compose_rows, RANKS=ranks, SIMDGROUPS=simdgroups, SHARED=True)
        blocks = -(-layer.hidden // self.compose_rows)
        arguments = (inner, layer.bank, layer.layout, work.offsets, work.terms, work.term_weights, shared, out)
        function("down_compose", parameters, self.change)((1, blocks, work.rows), (32, simdgroups, 1), arguments)

    def compose(self, work, rows, shared, out):
        parameters = dict(T=self.kind, HIDDEN=self.layer.hidden, SHARED=True)
        arguments = (rows, work.offsets, work.positions, shared, out)
        function("compose", parameters, self.change)((-(-self.layer.hidden // 256), work.rows, 1), (256, 1, 1), arguments)

    def fused(self, work, x, shared):
        inner = cp.full((work.pairs, self.layer.inner), cp.nan, dtype=cp.float32)
        out = cp.full((work.rows, self.layer.hidden), 0xFFFF if self.kind == "bf16" else cp.nan, dtype=x.dtype)
        self.gate_up(work, x, inner)
        self.down_compose(work, inner, shared, out)
        return out

    def split(self, work, x, shared):
        inner = cp.full((work.pairs, self.layer.inner), cp.nan, dtype=cp.float32)
        rows = cp.full((work.pairs, self.layer.hidden), cp.nan, dtype=cp.float32)
        out = cp.empty((work.rows, self.layer.hidden), dtype=x.dtype)
        self.gate_up(work, x, inner)
        self.down(work, inner, rows)
        self.compose(work, rows, shared, out)
        return out


def plan_of(rng, rows, ranks, slots):
    return [[(int(slot), np.float32(rng.random())) for slot in rng.permutation(slots)[:ranks]] for _ in range(rows)]


def affine_matrix(rng, rows, columns, bits, group):
    """Packed words, scales and biases in f32, and the values in f64."""
    codes = rng.integers(0, 2**bits, (rows, columns), dtype=np.uint32)
    words = np.bitwise_or.reduce(codes.reshape(rows, -1, 32 // bits) << (np.arange(32 // bits, dtype=np.uint32) * bits), axis=2)
    scales = (0.2 / 2**bits * (1 + rng.random((rows, columns // group)))).astype(np.float32)
    biases = (-scales * (2 ** (bits - 1) - 0.5)).astype(np.float32)
    values = codes * np.repeat(scales.astype(np.float64), group, 1) + np.repeat(biases.astype(np.float64), group, 1)
    return [cp.asarray(each) for each in (words.astype(np.uint32), scales, biases)], cp.asarray(values)


def check_dense(rows, columns, gate_bits, up_bits, kind, seed):
    """linear and swiglu, against f64 and a row alone against the same row in company."""
    rng, group, good = np.random.default_rng(seed), 32, True
    (gate, gate_values), (up, up_values) = (affine_matrix(rng, rows, columns, bits, group) for bits in (gate_bits, up_bits))
    x, x_values = to_type(rng.standard_normal((5, columns)).astype(np.float32), kind)
    products = [x_values.astype(cp.float64) @ values.T for values in (gate_values, up_values)]
    sizes = dict(T=kind, IN=columns, OUT=rows)
    stored = dict(GATE_S="f32", GATE_BITS=gate_bits, GATE_GROUP=group, UP_S="f32", UP_BITS=up_bits, UP_GROUP=group)
    for kernel, width, matrices, parameters, expected in (
        ("linear", 4, up, dict(**sizes, S="f32", BITS=up_bits, GROUP=group), products[1]),
        ("swiglu", 2, gate + up, dict(**sizes, **stored), products[0] / (1 + cp.exp(-products[0])) * products[1]),
    ):
        def run(x, per_tile):
            out = cp.full((x.shape[0], rows), 0xFFFF if kind == "bf16" else cp.nan, dtype=x.dtype)
            more = dict(MATCH=False) if kernel == "swiglu" else {}
            counts = cp.asarray([x.shape[0]] + [0] * 7, dtype=cp.uint32)
            grid = (1, -(-rows // (width * SIMDGROUPS)), -(-x.shape[0] // per_tile))
            call = function(kernel, dict(**parameters, ROWS=width, PAIRS=per_tile, **more))
            call(grid, (32, SIMDGROUPS, 1), (x, *matrices, counts, out))
            return out

        together = run(x, 4)
        alone = all(bool((run(x[row : row + 1].copy(), 1)[0] == together[row]).all()) for row in range(5))
        error = float(cp.linalg.norm(from_type(together, kind).astype(cp.float64) - expected) / cp.linalg.norm(expected))
        fine = alone and error <= TOLERANCE[kind](columns)
        print(f"{'ok  ' if fine else 'FAIL'} {kernel} {rows}x{columns} bits {gate_bits} and {up_bits} x {kind}: error {error:.2e}, alone same bits {alone}")
        good &= fine
    return good


def check(layer, kind, rows, ranks, seed, per_tiles=(1, 4)):
    rng = np.random.default_rng(seed)
    plan = plan_of(rng, rows, ranks, layer.slots)
    x, x_values = to_type(rng.standard_normal((rows, layer.hidden)).astype(np.float32), kind)
    shared, shared_values = to_type(rng.standard_normal((rows, layer.hidden)).astype(np.float32), kind)
    runner = Runner(layer, kind)
    fused = runner.fused(Work(plan, 1), x, shared)
    same = all(bool((runner.split(Work(plan, per), x, shared) == fused).all()) for per in per_tiles)
    alone = [runner.fused(Work(plan[row : row + 1], 1), x[row : row + 1].copy(), shared[row : row + 1].copy()) for row in range(min(rows, 3))]
    same_alone = all(bool((alone[row][0] == fused[row]).all()) for row in range(len(alone)))
    reference = oracle(layer, x_values, plan, shared_values)
    error = float(cp.linalg.norm(from_type(fused, kind).astype(cp.float64) - reference) / cp.linalg.norm(reference))
    good = error <= TOLERANCE[kind](max(layer.hidden, layer.inner)) and same and same_alone
    print(f"{'ok  ' if good else 'FAIL'} {layer.hidden}x{layer.inner} bits {layer.bits} groups {layer.groups} signed {layer.signed} {layer.scales}"
          f" x {kind} rows {rows} ranks {ranks}: error {error:.2e}, split same bits {same}, alone same bits {same_alone}")
    return good


def small():
    good = True
    for seed, (bits, group, signed, scales, kind) in enumerate(
        [(4, None, True, "f32", "f32"), (8, None, True, "f32", "bf16"), (4, 32, False, "bf16", "f16"), (8, 64, False, "f16", "f32")]
    ):
        good &= check(Layer(192, 128, bits, group, signed, scales, 5, seed), kind, 3, 3, seed, (2,))
        good &= check_dense(37, 544, (4, 2)[seed % 2], 8, kind, seed)
    return good


def chain(iterations=1000):
    """Layers that feed one another, with no wait in between: twice the same bits, and none that is not a number."""
    layer = Layer(2048, 768, 4, 64, False, "bf16", 32, 7)
    plans = [plan_of(np.random.default_rng(n), 2, 8, 32) for n in range(16)]
    works = [(Work(plan, 1), Work(plan, 2)) for plan in plans]
    runner, ends = Runner(layer, "f32"), []
    for form in (runner.fused, runner.split, runner.fused):
        x = cp.asarray(np.random.default_rng(3).standard_normal((2, layer.hidden)), dtype=cp.float32)
        for n in range(iterations):
            x = form(works[n % 16][0 if form == runner.fused else 1], x, x)
            x = x / cp.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)
        ends.append(x)
    good = bool(cp.isfinite(ends[0]).all()) and all(bool((end == ends[0]).all()) for end in ends)
    print(f"{'ok  ' if good else 'FAIL'} {iterations} chained layers, three times: same bits, all numbers: {good}")
    return good


if __name__ == "__main__":
    if sys.argv[1:] == ["chain"]:
        sys.exit(0 if chain() else 1)
    if sys.argv[1:] == ["small"]:
        sys.exit(0 if small() else 1)
    if sys.argv[1:] == ["planted"]:
        gone = lambda body: body.replace("  threadgroup_barrier(mem_flags::mem_threadgroup);", "")
        layer = Layer(192, 128, 4, None, True, "f32", 5, 0)
        work = Work(plan_of(np.random.default_rng(0), 1, 5, 5), 1)
        x = cp.ones((1, 192), dtype=cp.float32)
        Runner(layer, "f32", change=gone).fused(work, x, x)
        cp.cuda.Device().synchronize()
        sys.exit(0)
    from figures import figures

    good = small()
    for seed, kind in enumerate(("f32", "bf16", "f16")):
        good &= check(Layer(6144, 2048, 4, None, True, "f32", 12, seed), kind, 5, 8, seed)
        good &= check(Layer(6144, 2048, 8, None, True, "f32", 8, seed), kind, 2, 4, seed)
        good &= check(Layer(2048, 768, 4, 64, False, "bf16", 16, seed), kind, 32, 8, seed)
        good &= check(Layer(2880, 2880, 8, 32, False, kind, 6, seed), kind, 2, 4, seed)
    print("all right" if good else "SOMETHING IS WRONG")
    figures()
    sys.exit(0 if good else 1)
