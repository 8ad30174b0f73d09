/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_opcodes: every opcode of Python's pickle up to protocol 5, by byte, with
 * what runs it in pickle_ops.c. NULL: refused, since it imports a name, calls one
 * or refers to something outside the file.
 */
#ifndef TIDE_TRACE_PICKLE_OPCODES_H
#define TIDE_TRACE_PICKLE_OPCODES_H

#define TIDE__OPCODE_LIST(X)                       \
    X(MARK, '(', op_mark)                          \
    X(STOP, '.', NULL) /* the loop's */            \
    X(POP, '0', op_pop)                            \
    X(POP_MARK, '1', op_pop_mark)                  \
    X(DUP, '2', op_dup)                            \
    X(FLOAT, 'F', op_float)                        \
    X(INT, 'I', op_int)                            \
    X(BININT, 'J', op_binint)                      \
    X(BININT1, 'K', op_binint1)                    \
    X(LONG, 'L', op_long)                          \
    X(BININT2, 'M', op_binint2)                    \
    X(NONE, 'N', op_none)                          \
    X(PERSID, 'P', NULL)                           \
    X(BINPERSID, 'Q', NULL)                        \
    X(REDUCE, 'R', NULL)                           \
    X(STRING, 'S', op_string)                      \
    X(BINSTRING, 'T', op_binunicode)               \
    X(SHORT_BINSTRING, 'U', op_short_binunicode)   \
    X(UNICODE, 'V', op_unicode)                    \
    X(BINUNICODE, 'X', op_binunicode)              \
    X(APPEND, 'a', op_append)                      \
    X(BUILD, 'b', NULL)                            \
    X(GLOBAL, 'c', NULL)                           \
    X(DICT, 'd', op_dict)                          \
    X(EMPTY_DICT, '}', op_empty_dict)              \
    X(APPENDS, 'e', op_appends)                    \
    X(GET, 'g', op_get)                            \
    X(BINGET, 'h', op_binget)                      \
    X(INST, 'i', NULL)                             \
    X(LONG_BINGET, 'j', op_long_binget)            \
    X(LIST, 'l', op_list)                          \
    X(EMPTY_LIST, ']', op_empty_list)              \
    X(OBJ, 'o', NULL)                              \
    X(PUT, 'p', op_put)                            \
    X(BINPUT, 'q', op_binput)                      \
    X(LONG_BINPUT, 'r', op_long_binput)            \
    X(SETITEM, 's', op_setitem)                    \
    X(TUPLE, 't', op_tuple)                        \
    X(EMPTY_TUPLE, ')', op_empty_tuple)            \
    X(SETITEMS, 'u', op_setitems)                  \
    X(BINFLOAT, 'G', op_binfloat)                  \
    X(PROTO, 0x80, op_proto)                       \
    X(NEWOBJ, 0x81, NULL)                          \
    X(EXT1, 0x82, NULL)                            \
    X(EXT2, 0x83, NULL)                            \
    X(EXT4, 0x84, NULL)                            \
    X(TUPLE1, 0x85, op_tuple1)                     \
    X(TUPLE2, 0x86, op_tuple2)                     \
    X(TUPLE3, 0x87, op_tuple3)                     \
    X(NEWTRUE, 0x88, op_true)                      \
    X(NEWFALSE, 0x89, op_false)                    \
    X(LONG1, 0x8a, op_long1)                       \
    X(LONG4, 0x8b, op_long4)                       \
    X(BINBYTES, 'B', op_binbytes)                  \
    X(SHORT_BINBYTES, 'C', op_short_binbytes)      \
    X(SHORT_BINUNICODE, 0x8c, op_short_binunicode) \
    X(BINUNICODE8, 0x8d, op_binunicode8)           \
    X(BINBYTES8, 0x8e, op_binbytes8)               \
    X(EMPTY_SET, 0x8f, op_empty_set)               \
    X(ADDITEMS, 0x90, op_additems)                 \
    X(FROZENSET, 0x91, op_frozenset)               \
    X(NEWOBJ_EX, 0x92, NULL)                       \
    X(STACK_GLOBAL, 0x93, NULL)                    \
    X(MEMOIZE, 0x94, op_memoize)                   \
    X(FRAME, 0x95, op_frame)                       \
    X(BYTEARRAY8, 0x96, op_binbytes8)              \
    X(NEXT_BUFFER, 0x97, NULL)                     \
    X(READONLY_BUFFER, 0x98, NULL)

enum {
#define X(name, byte, run) OP_##name = (byte),
    TIDE__OPCODE_LIST(X)
#undef X
};

#endif
