# SPDX-License-Identifier: Apache-2.0
# fish completion of echo-tp. Options are asked of the program itself.

function __echo_tp_command
    for word in (commandline -opc)[2..-1]
        if not string match -q -- '-*' $word
            echo $word
            return
        end
    end
    return 1
end

complete -c echo-tp -n 'not __echo_tp_command' -f -a '(echo-tp --list-commands)'
complete -c echo-tp -n '__echo_tp_command' -a '(string match -q -- "-*" (commandline -ct); and echo-tp (__echo_tp_command) --list-options)'
complete -c echo-tp -n 'contains policy (commandline -opc)' -a 'check show explain'
