// What rows of a chunk carry besides their order: a pair of quantized g and h, packed as rounding.cuh says.
#pragma once

#include "types.cuh"

#ifndef SMALL
#define SMALL 0
#endif

#if SMALL
using Pair = i64;
#else
using Pair = i32;
#endif
