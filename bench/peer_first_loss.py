"""From equal weights, does the hand-written PyTorch step find the first loss that tautline finds?

Usage: peer_first_loss.py TORCH_STEP.py MODEL(s|m|l) DUMP.safetensors LOSS
DUMP and LOSS (losses[0]) come from bench_train_step --dump --losses. The peer's module is built by its own script, up
to where that script starts to train; its weights are then overwritten by ours.
"""
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

script, model, dump, ours = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
sys.argv = [script, model, "eager"]
source = open(script).read().split("for i in range(10 if compiled")[0].replace("20_000_000", "1_000")
peer = {}
exec(compile(source, script, "exec"), peer)  # noqa: S102: the peer's own module, not ours to copy
net, heads, width = peer["m"], peer["H"], peer["D"]
saved = {k: v.cuda() for k, v in load_file(dump).items()}

names = {"inp.weight": "input.weight", "n.weight": "norm.weight", "out.weight": "output.weight"}
for i in range(peer["L"]):
    for theirs, mine in (("n1", "attention.norm"), ("n2", "mlp.norm"), ("qkv", "attention.qkv"),
                         ("o", "attention.out"), ("w13", "mlp.in"), ("w2", "mlp.out")):
        names[f"blocks.{i}.{theirs}.weight"] = f"layer.{i}.{mine}.weight"
with torch.no_grad():
    for name, parameter in net.named_parameters():
        parameter.copy_(saved[names[name]])

offsets = saved["offsets"]
lengths = offsets.diff()
position = torch.cat([torch.arange(int(n)) for n in lengths]).cuda()
half = torch.arange(0, width // heads, 2, device="cuda") / (width // heads)
angle = position[:, None] * (10000 ** -half)
with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
    h = net(saved["rows"], offsets.int(), int(lengths.max()), angle.cos()[:, None], angle.sin()[:, None], None)
    logits = torch.cat(((h * saved["positive"]).sum(-1, keepdim=True), h @ saved["negative"].T.to(h.dtype)), -1)
    loss = F.cross_entropy(logits.float(), torch.zeros(len(h), dtype=torch.long, device="cuda")).item()
print(f"first loss {model}: peer {loss:.6f}, tautline {ours:.6f}, relative difference {abs(loss - ours) / loss:.1e}")
sys.exit(abs(loss - ours) > 2**-8 * loss)  # one bf16 step
