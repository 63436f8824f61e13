"""Files: paths of any file system, atomic writes, output that resumes."""
