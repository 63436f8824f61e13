"""Files: paths of any file system, writes that are whole or not at all, output that resumes."""
