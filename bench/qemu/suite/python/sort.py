# Sort a million integers. What is printed costs little next to the sort.
import array
import random

values = array.array("q", random.Random(1).randbytes(8_000_000)).tolist()
values.sort()
print(values[::50_000], sum(values))
