"""What compute-sanitizer and ncu print, captured and shortened, and the launch that it is of."""

import numpy as np
import torch

from course_utils.cuda import read_kernel
from course_utils.launches import Launch

LAUNCH = Launch("00_start_here/vector_add.cu", "vector_add", (1,), (256,), (*torch.zeros(3, 256), np.int32(300)))
ADDITION = next(n for n, line in enumerate(read_kernel(LAUNCH.source).splitlines(), 1) if "c[i] = a[i]" in line)

MEMCHECK = f"""\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at vector_add+0x90 in /tmp/tmp1ab/6f3c.cubin.cu:{ADDITION}
=========     by thread (1,0,0) in block (3,2,0)
=========     Access at 0x7f3c4f400400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c4f400000 of size 1,024 bytes
=========         Device Frame: vector_add+0x90 in /tmp/tmp1ab/6f3c.cubin.cu:{ADDITION}
=========
========= Invalid __global__ read of size 4 bytes
=========     at vector_add+0x90 in /tmp/tmp1ab/6f3c.cubin.cu:{ADDITION}
=========     by thread (2,0,0) in block (3,2,0)
=========     Access at 0x7f3c4f400404 is out of bounds
=========
Traceback (most recent call last):
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
INLINED = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at half_barrier(int)+0x40 in /home/me/smoke.cu:16
=========     by thread (31, 0, 0) in block (0, 0, 0)
=========         Device Frame: divergent_barrier(float *, int)+0x40 in /home/me/smoke.cu:21
=========
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void turn<(int)32>(float *, int)+0x130 in /tmp/a.cubin.cu:12
=========     and Read access at void turn<(int)32>(float *, int)+0x170 in /tmp/a.cubin.cu:13 [896 hazards]
=========     and Write access at void turn<(int)32>(float *, int)+0x130 in /tmp/a.cubin.cu:12 [4 hazards]
=========
========= Warning: Race reported between Read access at void turn<(int)32>(float *, int)+0x10
=========     and Write access at void turn<(int)32>(float *, int)+0x20 [1 hazard]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
CLEAN = """\
========= COMPUTE-SANITIZER
launched vector_add()
========= ERROR SUMMARY: 0 errors
"""
READ, SECTORS, LDSM = "dram__bytes_read", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld", "smsp__inst_executed_op_ldsm"
NCU = f"""\
==PROF== Connected to process 123 (/usr/bin/python3.12)
==PROF== Profiling "vector_add" - 0: 0%....50%....100% - 4 passes
"ID","Process ID","Kernel Name","Block Size","Grid Size","CC","{READ}.sum","{SECTORS}.sum","{LDSM}.sum"
"","","","","","","byte","sector",""
"0","123","vector_add","(256, 1, 1)","(1, 1, 1)","9.0","2,304","64","0"
"1","123","void turn<32>(float *, int)","(32, 1, 1)","(1, 1, 1)","9.0","1.5e+03","1,024","n/a"
"""
