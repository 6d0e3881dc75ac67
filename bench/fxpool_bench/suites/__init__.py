"""The suites that ship: ``fxpool bench NAME``.

    attention      masks, shared heads, windows, biases, rotations
    convolutions   residual, depthwise, grouped, dense nets, an encoder with a decoder
    kernels        elementwise work, reductions, attention, an MLP
    transformers   language models of eight architectures

Each model imports what it needs inside functions: the runner, which reads the suite, needs neither torch nor models.
"""
