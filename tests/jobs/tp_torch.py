#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real tensor-parallel PyTorch job, used as a workload: trains or runs a Qwen3 or Llama 3 causal LM.

The model is the one of transformers, with random weights. Each rank keeps a slice: query, key, value, gate and up
projections by output features, the projections back to the hidden size by input features, whose partial sums an
all-reduce completes in the forward pass; gradients of the blocks' inputs are all-reduced in the backward pass. It knows
nothing of echo-tp. Start one process a rank with torchrun or share/launch-ranks.sh. Last line: `result: ...`.
"""

import argparse
import copy
import os
import statistics
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", choices=["qwen3", "llama3"], default="qwen3")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=None, help="default: hidden / heads")
    parser.add_argument("--intermediate", type=int, default=2816)
    parser.add_argument("--vocab", type=int, default=256, help="at least 256: tokens are bytes")
    parser.add_argument("--mode", choices=["train", "infer"], default="train")
    parser.add_argument("--steps", type=int, default=None, help="default: 200 to train, 10 to infer")
    parser.add_argument("--warmup", type=int, default=3, help="steps that do not count for the times")
    parser.add_argument("--batch", type=int, default=8, help="sequences")
    parser.add_argument("--sequence", type=int, default=512, help="tokens of one sequence; of one prompt to infer")
    parser.add_argument("--decode", type=int, default=32, help="infer: tokens decoded after each prefill")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl", help="gloo runs on the CPU")
    parser.add_argument("--self-check", action="store_true", help="compare with the unsplit model in fp32 and end")
    parser.add_argument("--verify-ranks", action="store_true", help="compare every all-reduce's bytes over the ranks")
    arguments = parser.parse_args()
    if arguments.steps is None:
        arguments.steps = 200 if arguments.mode == "train" else 10
    world = int(os.environ.get("WORLD_SIZE", "1"))
    for name in ("heads", "kv_heads", "intermediate"):
        if getattr(arguments, name) % world != 0:
            parser.error(f"--{name.replace('_', '-')} {getattr(arguments, name)} is not divisible by {world} ranks")
    if arguments.heads % arguments.kv_heads != 0:
        parser.error("--heads must be a multiple of --kv-heads")
    if arguments.vocab < 256:
        parser.error("--vocab must be at least 256: tokens are bytes")
    return arguments


class Exchange:
    """The all-reduce of one tensor-parallel group, and the optional comparison of its results over the ranks."""

    def __init__(self, verify: bool) -> None:
        # Hashes travel in their own group: the one under test carries the model's traffic alone.
        self.verify_group = dist.new_group() if verify and dist.get_world_size() > 1 else None
        self.factors: torch.Tensor | None = None
        self.mismatches: torch.Tensor | None = None
        self.count = 0
        self.bytes = 0

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.contiguous()
        if dist.get_world_size() == 1:
            return tensor
        dist.all_reduce(tensor)
        self.count += 1
        self.bytes += tensor.numel() * tensor.element_size()
        if self.verify_group is not None:
            self.compare(tensor)
        return tensor

    def compare(self, tensor: torch.Tensor) -> None:
        words = tensor.detach().view(-1).view(torch.int16).to(torch.int64)
        if self.factors is None or self.factors.numel() < words.numel():
            index = torch.arange(words.numel(), device=tensor.device, dtype=torch.int64)
            self.factors = (index * 0x5851F42D4C957F2D + 0x14057B7EF767814F) | 1  # wraps around: that is fine
        own = (words * self.factors[: words.numel()]).sum().view(1)
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own, group=self.verify_group)
        differs = (torch.stack(gathered) != own).any().to(torch.int64)
        self.mismatches = differs if self.mismatches is None else self.mismatches + differs

    def check(self) -> None:
        """Ends the process when ranks held different bytes. Waits for the device."""
        if self.mismatches is not None and int(self.mismatches) > 0:
            sys.exit(f"tp_torch: {int(self.mismatches)} all-reduces gave different bytes on different ranks")


class ReduceForward(torch.autograd.Function):
    """Completes the partial sums of a split projection; the gradient is already the same on all ranks."""

    @staticmethod
    def forward(ctx, partial, exchange):
        return exchange.all_reduce(partial)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class ReduceBackward(torch.autograd.Function):
    """Entry of a split block: every rank uses the same input, so the input's gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx, hidden, exchange):
        ctx.exchange = exchange
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.exchange.all_reduce(gradient.clone()), None


def slice_of(parameter: torch.Tensor, dimension: int, rank: int, world: int) -> nn.Parameter:
    return nn.Parameter(parameter.detach().chunk(world, dim=dimension)[rank].clone())


def split_columns(linear: nn.Linear, rank: int, world: int) -> None:
    linear.weight = slice_of(linear.weight, 0, rank, world)
    linear.out_features //= world


class RowParallelLinear(nn.Module):
    """Keeps a slice of the input features; the all-reduce adds up what the ranks computed."""

    def __init__(self, linear: nn.Linear, rank: int, world: int, exchange: Exchange) -> None:
        super().__init__()
        self.weight = slice_of(linear.weight, 1, rank, world)
        self.exchange = exchange

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return ReduceForward.apply(nn.functional.linear(hidden, self.weight), self.exchange)


def split_model(model: nn.Module, rank: int, world: int, exchange: Exchange) -> None:
    """Turns the whole model into this rank's share, in place. Head counts follow from the shapes."""

    def enter(_module, positional, keywords):
        if "hidden_states" in keywords:
            keywords["hidden_states"] = ReduceBackward.apply(keywords["hidden_states"], exchange)
        else:
            positional = (ReduceBackward.apply(positional[0], exchange), *positional[1:])
        return positional, keywords

    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            if linear.bias is not None:
                sys.exit("tp_torch: a projection has a bias, which this split does not handle")
            split_columns(linear, rank, world)
        attention.o_proj = RowParallelLinear(attention.o_proj, rank, world, exchange)
        mlp.down_proj = RowParallelLinear(mlp.down_proj, rank, world, exchange)
        for block in (attention, mlp):
            block.register_forward_pre_hook(enter, with_kwargs=True)


def partial_gradients(model: nn.Module) -> list[nn.Parameter]:
    """Replicated weights that see this rank's heads alone: their gradients have to be summed."""
    return [weight for name, weight in model.named_parameters() if ".q_norm." in name or ".k_norm." in name]


def sum_partial_gradients(weights: list[nn.Parameter]) -> None:
    if not weights or dist.get_world_size() == 1:
        return
    flat = torch.cat([weight.grad.float().view(-1) for weight in weights])
    dist.all_reduce(flat)
    for weight, summed in zip(weights, flat.split([weight.numel() for weight in weights])):
        weight.grad.copy_(summed.view_as(weight))


def build_model(arguments: argparse.Namespace) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    shape = {
        "vocab_size": arguments.vocab,
        "hidden_size": arguments.hidden,
        "intermediate_size": arguments.intermediate,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": arguments.heads,
        "num_key_value_heads": arguments.kv_heads,
        "head_dim": arguments.head_dim or arguments.hidden // arguments.heads,
        "max_position_embeddings": arguments.sequence + arguments.decode,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(arguments.seed)
    if arguments.arch == "qwen3":
        rope = {"rope_type": "default", "rope_theta": 1e6}
        return Qwen3ForCausalLM(Qwen3Config(**shape, rope_parameters=rope))
    rope = {"rope_type": "default", "rope_theta": 5e5}
    return LlamaForCausalLM(LlamaConfig(**shape, rms_norm_eps=1e-5, rope_parameters=rope))


class Text:
    """Windows of Python's own standard library, as bytes: real text that every machine with this job has."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(path for path in folder.glob("*.py") if path.is_file())
        data = b"".join(path.read_bytes() for path in files)
        if len(data) < 100 * arguments.sequence:
            sys.exit(f"tp_torch: only {len(data)} bytes of text in {folder}/*.py, too few to train on")
        self.tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.generator = torch.Generator().manual_seed(arguments.seed)
        self.shape = (arguments.batch, arguments.sequence)
        self.device = device

    def batch(self, extra: int = 1) -> torch.Tensor:
        """[batch][sequence + extra] token ids, the same on every rank."""
        length = self.shape[1] + extra
        starts = torch.randint(len(self.tokens) - length, (self.shape[0],), generator=self.generator)
        rows = torch.stack([self.tokens[start : start + length] for start in starts.tolist()])
        return rows.to(self.device, torch.int64)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


class StepRange:
    """NVTX range "step" around one step."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        if self.enabled:
            torch.cuda.nvtx.range_push("step")

    def __exit__(self, *_) -> None:
        if self.enabled:
            torch.cuda.nvtx.range_pop()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train(arguments: argparse.Namespace, model: nn.Module, exchange: Exchange, device: torch.device) -> str:
    """AdamW on fp32 master weights; the model itself is bf16, as large trainings do it."""
    model.train()
    weights = list(model.parameters())
    partial = partial_gradients(model)
    masters = [weight.detach().float().clone().requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=arguments.lr, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    text = Text(arguments, device)
    losses, times = [], []
    for step in range(arguments.steps):
        start = time.perf_counter()
        with StepRange(device.type == "cuda"):
            for group in optimizer.param_groups:
                group["lr"] = arguments.lr * min(1.0, (step + 1) / 20)
            loss = loss_of(model, text.batch())
            loss.backward()
            sum_partial_gradients(partial)
            for master, weight in zip(masters, weights):
                master.grad = weight.grad.float()
                weight.grad = None
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(weights, masters)
            losses.append(loss.item())
            synchronize(device)
        if step >= arguments.warmup:
            times.append((time.perf_counter() - start) * 1e3)
        exchange.check()
        if dist.get_rank() == 0 and (step % 10 == 9 or step == 0):
            print(f"step {step + 1}: loss {losses[-1]:.4f}", flush=True)
    last = losses[-20:]
    return f"step_ms={median(times):.3f} loss={statistics.fmean(last):.5f} first_loss={losses[0]:.5f} last={len(last)}"


@torch.no_grad()
def infer(arguments: argparse.Namespace, model: nn.Module, exchange: Exchange, device: torch.device) -> str:
    """Prefill of a batch, then decode steps on given tokens: two runs see the same inputs, whatever they answer."""
    model.eval()
    text = Text(arguments, device)
    prefills, decodes, times = [], [], []
    checksum = 0.0
    for step in range(-arguments.warmup, arguments.steps):
        tokens = text.batch(arguments.decode)
        with StepRange(device.type == "cuda"):
            start = time.perf_counter()
            answer = model(input_ids=tokens[:, : arguments.sequence], use_cache=True, logits_to_keep=1)
            answer.logits[:, -1].argmax(-1).tolist()  # a server sends the token on: it waits for it
            middle = time.perf_counter()
            for place in range(arguments.decode):
                column = arguments.sequence + place
                decode_start = time.perf_counter()
                answer = model(
                    input_ids=tokens[:, column : column + 1],
                    past_key_values=answer.past_key_values,
                    use_cache=True,
                    logits_to_keep=1,
                )
                answer.logits[:, -1].argmax(-1).tolist()
                if step >= 0:
                    decodes.append((time.perf_counter() - decode_start) * 1e3)
            end = time.perf_counter()
        exchange.check()
        checksum = answer.logits.float().norm().item()
        if step < 0:
            continue
        prefills.append((middle - start) * 1e3)
        times.append((end - start) * 1e3)
        if dist.get_rank() == 0:
            print(f"step {step + 1}: {times[-1]:.2f} ms, prefill {prefills[-1]:.2f} ms", flush=True)
    return (
        f"step_ms={median(times):.3f} prefill_ms={median(prefills):.3f} decode_ms={median(decodes):.3f} "
        f"logits={checksum:.6f}"
    )


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def self_check(arguments: argparse.Namespace, device: torch.device) -> str:
    """Logits and gradients of the split model against the whole one, both in fp32, computed on every rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = build_model(arguments).to(device)
    split = copy.deepcopy(whole)
    exchange = Exchange(verify=True)
    split_model(split, rank, world, exchange)
    tokens = Text(arguments, device).batch()
    worst = {"logits": 0.0, "gradients": 0.0}

    def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
        return ((got - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()

    loss_of(whole, tokens).backward()
    loss_of(split, tokens).backward()
    sum_partial_gradients(partial_gradients(split))
    wanted = dict(whole.named_parameters())
    for name, weight in split.named_parameters():
        gradient = wanted[name].grad
        for dimension in range(gradient.dim()):
            if weight.shape[dimension] != gradient.shape[dimension]:
                gradient = gradient.chunk(world, dim=dimension)[rank]
        worst["gradients"] = max(worst["gradients"], relative(weight.grad, gradient))
    with torch.no_grad():
        # The whole sequence at once, and the same with its second half decoded token by token on a cache.
        logits = whole(input_ids=tokens, use_cache=False).logits
        worst["logits"] = relative(split(input_ids=tokens, use_cache=False).logits, logits)
        half = tokens.shape[1] // 2
        answer = split(input_ids=tokens[:, :half], use_cache=True)
        parts = [answer.logits]
        for column in range(half, tokens.shape[1]):
            answer = split(
                input_ids=tokens[:, column : column + 1], past_key_values=answer.past_key_values, use_cache=True
            )
            parts.append(answer.logits)
        worst["decode"] = relative(torch.cat(parts, dim=1), logits)
    exchange.check()
    for what, error in worst.items():
        if not error < 1e-3:
            sys.exit(f"tp_torch[rank {rank}]: self-check: {what} differ from the unsplit model's by {error:.2e} (RMS)")
    return "self_check=ok " + " ".join(f"{what}_error={error:.1e}" for what, error in worst.items())


def main() -> None:
    arguments = parse_arguments()
    if arguments.backend == "nccl" and not torch.cuda.is_available():
        sys.exit("tp_torch: no GPU; --backend gloo runs on the CPU")
    if arguments.backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group(arguments.backend, rank=rank, world_size=world)
    if arguments.self_check:
        outcome = self_check(arguments, device)
    else:
        exchange = Exchange(arguments.verify_ranks)
        model = build_model(arguments)
        split_model(model, rank, world, exchange)
        for weight in model.parameters():  # weights alone: rotary frequencies need fp32
            weight.data = weight.data.to(torch.bfloat16)
        model.to(device)
        run = train if arguments.mode == "train" else infer
        outcome = run(arguments, model, exchange, device)
        outcome += f" all_reduces={exchange.count} all_reduce_bytes={exchange.bytes}"
        outcome += f" verified={'yes' if exchange.verify_group is not None else 'no'}"
    if rank == 0:
        print(f"result: {outcome} arch={arguments.arch} mode={arguments.mode} ranks={world}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
