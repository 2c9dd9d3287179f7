# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes a network of eight layers with random weights: model.py FILE"""

import os
import sys

import numpy
from onnx import TensorProto, checker, helper, numpy_helper, save

ROWS, WIDTH, LAYERS = 16, 512, 8

rng = numpy.random.default_rng(16)
weights, nodes, last = [], [], "rows"
for layer in range(LAYERS):
    values = rng.standard_normal((WIDTH, WIDTH), dtype=numpy.float32) / numpy.sqrt(WIDTH / 2)
    weights.append(numpy_helper.from_array(values.astype(numpy.float32), "weights%d" % layer))
    nodes.append(helper.make_node("MatMul", [last, "weights%d" % layer], ["sum%d" % layer]))
    last = "layer%d" % layer
    nodes.append(helper.make_node("Relu", ["sum%d" % layer], [last]))
tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, WIDTH])
graph = helper.make_graph(nodes, "layers", [tensor("rows")], [tensor(last)], weights)
opset = [helper.make_opsetid("", 17)]
model = helper.make_model(graph, opset_imports=opset, ir_version=9)
checker.check_model(model)
fresh = "%s.%d" % (sys.argv[1], os.getpid())
save(model, fresh)
os.rename(fresh, sys.argv[1])
