# Matrix products, 256 by 256 float64. The sums are exact bit by bit: both
# machines run the same instructions, and floating point is defined.
import hashlib

import numpy

a = (numpy.arange(65536, dtype=numpy.float64).reshape(256, 256) * 7 % 1013 - 500) / 17
b = a.T.copy()
for _ in range(10):
    b = a @ b
    b /= abs(b).max()
print(hashlib.sha256(b.tobytes()).hexdigest())
