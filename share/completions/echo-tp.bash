# SPDX-License-Identifier: Apache-2.0
# bash completion of echo-tp. Options are asked of the program itself; after -- the job's own words are completed.
# shellcheck shell=bash

_echo_tp() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} program=${COMP_WORDS[0]} command='' word i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ $word == -- ]]; then
      if declare -F _command_offset >/dev/null; then
        _command_offset $((i + 1))
      else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
      fi
      return
    fi
    if [[ -z $command && $word != -* ]]; then command=$word; fi
  done
  if [[ -z $command ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" --list-commands 2>/dev/null) --help --version --quiet --color" -- "$current")
    return
  fi
  local choices=
  case $previous in
    --mode | -m) choices="compress observe" ;;
    --dtype) choices="bf16 fp16 fp32" ;;
    --op) choices="sum avg" ;;
    --color) choices="auto always never" ;;
    --background) choices="idle copy collective" ;;
    --compensation)
      if [[ $command == simulate ]]; then choices="none owner both ef smooth drift"; fi
      ;;
    --state) choices="fp32 fp16 int8" ;;
    --bits | --first-leg-bits) choices="4 8" ;;
    --quantiser) choices="extremum symmetric" ;;
    --activations) choices="gaussian heavy-tailed" ;;
    --group) choices="32 64 128" ;;
    --step-unit) choices="us ms s" ;;
    policy) choices="check show explain" ;;
  esac
  if [[ -n $choices ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" "$command" --list-options 2>/dev/null)" -- "$current")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}
complete -F _echo_tp echo-tp
