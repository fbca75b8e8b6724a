// Which instruction set the fast CPU kernels use. Every *_cpu.cpp is compiled twice, as namespace
// v3 (AVX2, FMA) and v4 (AVX-512); the plain NAME_cpu of a header calls one of them.
#pragma once

namespace tautline::kernels {

enum class Isa { kV3, kV4 };

/// The best that this machine has, decided once. A machine without AVX2 is refused with a
/// UserError.
Isa isa();

}  // namespace tautline::kernels
