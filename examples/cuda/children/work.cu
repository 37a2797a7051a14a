#include "work.h"

__global__ void add(int* at, int by) { atomicAdd(at, by); }
