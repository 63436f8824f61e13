"""The script that wrote the files is for the version that wrote them."""

collect_ignore = ["write.py"]
