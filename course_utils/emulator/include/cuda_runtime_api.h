// What a kernel needs of it the prelude has. It is here for NVIDIA's own headers, which ask for it.
#pragma once
