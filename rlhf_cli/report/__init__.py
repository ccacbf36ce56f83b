"""Plots and HTML reports of measurements, written as files."""
