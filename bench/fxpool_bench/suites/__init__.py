"""The suites that ship with fxpool: ``fxpool bench NAME``.

    attention      attention with masks, shared heads, windows, biases and rotary positions
    convolutions   residual, depthwise, grouped and dense networks, and a U-Net
    kernels        elementwise operations, reductions, attention, an MLP
    transformers   language models of eight architectures

Imports of torch and models are inside functions, because the runner reads the suites but does not need them.
"""
