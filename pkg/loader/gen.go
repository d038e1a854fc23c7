package loader

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -tags linux -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3" -type tf_limit -type tf_right -type tf_code -type tf_hook -type tf_op_id -type tf_jail_flag -type tf_event_flag -type tf_jail -type tf_member -type tf_grant_key -type tf_grant -type tf_identity -type tf_learning -type tf_proof -type tf_proof_entry -type tf_canary_count -type tf_event -type tf_pty_key enforcer ../../bpf/enforcer.bpf.c
