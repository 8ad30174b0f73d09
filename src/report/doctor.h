/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: what a machine offers, for a person and for a program. */
#ifndef TIDE_REPORT_DOCTOR_H
#define TIDE_REPORT_DOCTOR_H

#include <stdio.h>

#include "doctor/doctor.h"

void tide__report_doctor_text(const tide__doctor *d, FILE *out, int width);
/* One line: {"host":{...},"gpus":[{...}],"findings":[{"kind","text"}]}; bytes, null where there is no limit.
 */
void tide__report_doctor_json(const tide__doctor *d, FILE *out);

#endif
