# Integers and floats: what a loop of simple statements costs.
def run(n):
    a, b, x = 1, 2, 0.5
    for i in range(n):
        a = (a * 1103515245 + 12345) & 0x7FFFFFFF
        b ^= a >> 3
        x = x * 0.75 + (a & 255) / 3.0
        if b & 1:
            b += i // 7
        else:
            b -= i % 5
        b &= 0xFFFFFFFF
    return a, b, x.hex()


print(run(500_000))
