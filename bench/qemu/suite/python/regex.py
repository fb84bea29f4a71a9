# Regular expressions: search, groups, substitution, alternatives.
import re

text = "\n".join(
    "2024-%02d-%02dT%02d:%02d:00 host%d app[%d]: GET /path/%d?id=%d&u=user%d@example.org %d"
    % (i % 12 + 1, i % 28 + 1, i % 24, i % 60, i % 7, i * 31 % 9973, i, i * 17, i % 101, 200 + i % 5)
    for i in range(6000)
)
date = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)")
mail = re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+")
line = re.compile(r"^.*?(?:GET|POST) (/\S*)\?id=(\d+).* (20[0-3])$", re.M)
total = 0
for _ in range(4):
    total += len(date.sub(r"\3.\2.\1 \4h\5", text))
    total += sum(len(m) for m in mail.findall(text))
    total += sum(int(m[2]) + len(m[1]) for m in line.finditer(text))
print(total)
