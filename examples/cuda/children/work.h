// Shared by the files of `children`.
#pragma once

// Adds `by` to what lies at `at`; in another file than those that launch it.
__global__ void add(int* at, int by);
