/* SPDX-License-Identifier: Apache-2.0
 * Stands for our libraries beside the executable: what they do in a job is not what the tests of the command
 * line are about. */
int echo_tp_cli_stub(void);
int echo_tp_cli_stub(void) {
  return 0;
}
