#pragma once
#include "bfind.h"
