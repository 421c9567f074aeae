// Racecheck and initcheck, as the tracer calls them.
#pragma once
#include "tracer.h"

Races* emu_new_races(Tracer& t);
void emu_start_races(Races& r);
void emu_check_races(Tracer& t);              // reads the logs
void emu_end_race_interval(Tracer& t);
void emu_find_conflicts();                    // by the worker, in the end: between blocks
