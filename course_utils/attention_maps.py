"""The former name of `course_utils.studies.maps`: copies of exercise 04.1 that were handed out import it."""

from course_utils.studies.maps import HEADS, attention_maps, density, kept_mass, mask_of

__all__ = ["HEADS", "attention_maps", "density", "kept_mass", "mask_of"]
