# SPDX-License-Identifier: Apache-2.0
#
# The client matrix (tests/e2e/clients): the S3 clients people have, through every transport. Its npm clients are installed under
# the output folder from the lock file; the registry is the machine's. MATRIX takes further arguments: MATRIX='--client curl'.
# RECEIVE=af_xdp has the listeners receive by AF_XDP, on veth between network namespaces (root).

E2E_NPM := build/clients
E2E_NPM_FILES := $(addprefix tests/e2e/clients/,package.json package-lock.json .npmrc)

# A failed installation is no failure here: the matrix says which clients are missing, and with CI=true fails.
.PHONY: test-clients clients
clients: clients-of-release
	@$(MAKE) --no-print-directory $(E2E_NPM)/stamp || echo "the clients of npm could not be installed"

$(E2E_NPM)/stamp: $(E2E_NPM_FILES)
	@mkdir -p $(@D) && cp $^ $(@D)/
	@cd $(@D) && npm ci --silent && touch $(abspath $@)

test-clients: build clients
	@mkdir -p $(RESULTS)
	@E2E_NPM=$(abspath $(E2E_NPM)) $(MATRIX_$(or $(RECEIVE),socket)) --markdown $(RESULTS)/$(if $(RECEIVE),clients-$(RECEIVE),clients).md $(MATRIX)
MATRIX_socket := tests/e2e/clients/matrix.py
MATRIX_af_xdp := tests/root/run-clients-xdp.sh

.PHONY: readme-clients
readme-clients: test-clients
	@tests/e2e/clients/readme $(RESULTS)/clients.md

## check-heap    the e2e lane with a program that ends when a worker allocates on the data path
## readme-clients  the client matrix, then its table into the README
## test-clients  S3 clients (awscli, boto3, rclone, SDKs ...) x transports x operations, with a table (RECEIVE=af_xdp)

# The program with a guard on its heap, over devices that can be told to hang: run-heap.py. The objects are the ones of
# build/penstock; only the link differs.
$(O)/penstock-heap: $(O)/server/main.o $(addprefix $(O)/tests/e2e/,heap_guard.o hang_device.o) $(LIBS) | $(D)/stamp-build
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -rdynamic -Wl,--wrap=worker_turn,--wrap=worker_close,--wrap=dev_open -o $@ $(filter %.o,$^) $(LINK) $(LDLIBS_ALL) -ldl
# The program over devices that can be told to hang: run-hang.py.
$(O)/penstock-hang: $(O)/server/main.o $(O)/tests/e2e/hang_device.o $(LIBS) | $(D)/stamp-build
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -Wl,--wrap=dev_open -o $@ $(filter %.o,$^) $(LINK) $(LDLIBS_ALL)
-include $(O)/tests/e2e/heap_guard.d $(O)/tests/e2e/hang_device.d
test-e2e: $(O)/penstock-heap $(O)/penstock-hang
.PHONY: check-heap
check-heap: $(O)/penstock-heap clients-of-release
	@PENSTOCK=$(abspath $(O)/penstock-heap) PENSTOCK_HANG=$(abspath $(O)/penstock-heap) $(LANE) heap --results $(RESULTS) $(wildcard tests/e2e/run-*)
