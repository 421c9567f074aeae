"""Measures a chapter's figures on a GPU, one module for each chapter; `subjects` lists them all."""
