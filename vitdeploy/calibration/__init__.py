"""Calibration set, statistics, ranges, plan and Q/DQ: a float graph becomes an INT8 one."""
