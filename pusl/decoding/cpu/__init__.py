"""A T5 model -> decoder steps on a CPU: the engine, its fp32 and int8 products, and kernels compiled by numba."""
