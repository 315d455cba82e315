/* SPDX-License-Identifier: Apache-2.0
 * A libnccl.so.2 without functions: hides an NCCL that is installed on the machine from a test. */
extern const int fake_empty;
__attribute__((visibility("default"))) const int fake_empty = 1;
