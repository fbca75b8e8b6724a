"""Time on a GPU, as every bench in Python takes it."""

import torch


def median_ms(call, repeats, warm_up=2):
    """Median of CUDA events after warm-up, launch time hidden."""
    times = []
    for i in range(warm_up + repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(1_000_000)  # about half a millisecond, while the host launches
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if i >= warm_up:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]
