# SPDX-License-Identifier: MIT OR Apache-2.0
"""An inference server on standard input: serve.py MODEL [THREADS]

Prints "ready", then answers each line (a seed, from which the input is generated) with the class of
the result. Without THREADS, ONNX Runtime chooses the number of threads."""

import sys

import numpy
import onnxruntime

options = onnxruntime.SessionOptions()
if len(sys.argv) > 2:
    options.intra_op_num_threads = int(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
shape = session.get_inputs()[0].shape
print("ready", flush=True)
for line in sys.stdin:
    rows = numpy.random.default_rng(int(line)).standard_normal(shape, dtype=numpy.float32)
    result = session.run(None, {"rows": rows})[0]
    print(int(result.sum(axis=0).argmax()), flush=True)
